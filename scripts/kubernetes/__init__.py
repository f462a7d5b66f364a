"""Manifests of a topology for Kubernetes; see `pageant.scripts.kubernetes.manifests`."""
