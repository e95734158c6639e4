"""One end of a connection over NATS: framing, flow control and liveness."""
