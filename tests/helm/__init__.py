"""The chart as the real Helm renders it, held to Kubernetes' own schemas and to the gateway's settings."""
