"""`server.json`: validated, compared with the live server, admitted from a private registry, and published."""
