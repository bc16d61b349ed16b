"""Device code: one file per scenario kernel, each with its own @pypto.frontend.jit."""
