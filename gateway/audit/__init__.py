"""Where records become durable: one port, one sink per technology."""
