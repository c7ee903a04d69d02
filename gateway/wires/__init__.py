"""The wires: certificates and keys of the listener and towards replicas, and the signed statement of who calls."""
