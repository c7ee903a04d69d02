"""`ostiary init`: from a few answers to a configuration, a policy and keys that `ostiary check` accepts."""
