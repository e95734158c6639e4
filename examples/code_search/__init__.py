"""A web application in front of a service: search in source code."""
