"""Developer tools: machine setup, local Kubernetes, services, image builds, demo, checks and test runs."""
