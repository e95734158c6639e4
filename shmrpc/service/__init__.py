"""A service as its author declares it: functions with their signatures, the call that runs one, interceptors."""
