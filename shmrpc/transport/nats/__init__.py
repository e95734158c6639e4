"""Transport between hosts, through NATS servers."""
