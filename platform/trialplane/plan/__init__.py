"""From a spec to what is sent: pure functions, no network."""
