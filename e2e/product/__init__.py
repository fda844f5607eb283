"""The product as a user has it: built, in images, installed in a cluster, spoken to over HTTP."""

from e2e.product.admin import Admin
from e2e.product.build import binaries, images
from e2e.product.deployment import Deployment, Secrets, install_operator, operator_away
from e2e.product.local import Control, Gateway

__all__ = [
    "Admin",
    "Control",
    "Deployment",
    "Gateway",
    "Secrets",
    "binaries",
    "images",
    "install_operator",
    "operator_away",
]
