"""The client's side of a call: connections, requests and what comes back."""
