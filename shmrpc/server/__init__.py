"""The server's side of a call: what runs a request, and its life until it is answered."""
