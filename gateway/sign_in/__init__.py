"""Sign-in for people: OpenID Connect's authorization code flow, and the sessions that it leads to."""
