"""Where people meet the desk over HTTP: the JSON API."""
