"""Pools: processes that work for one, over connections that they inherit."""
