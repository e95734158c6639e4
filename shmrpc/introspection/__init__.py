"""Descriptions of services, for people and for tools without the source."""
