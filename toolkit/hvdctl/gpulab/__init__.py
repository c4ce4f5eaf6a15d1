"""GPULab, imec's service for container jobs on GPUs: a client of its API, and an emulator of it."""
