"""Requests on their way: from a client's call to a pod, on to another, and back."""
