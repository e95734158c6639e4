"""One process publishes the ticks of a market; a recorder, an alarm and a chart read them, each at its own pace."""
