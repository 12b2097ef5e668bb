"""Kubernetes: where pods and EnginePools are found, and where the leader writes what it knows."""
