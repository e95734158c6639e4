"""The client for asyncio: the driver of the common parts in an event loop."""
