"""Demo servers, a development issuer and the guided tour; loopback only, never in production."""
