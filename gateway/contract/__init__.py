"""The wire contract, sans-IO: no await, no clock, no I/O, no framework. Every rule here is a pure function."""
