"""The product as a user has it: built, in images, installed in a cluster, spoken to over HTTP."""

from tools.product.admin import Admin
from tools.product.build import binaries, images
from tools.product.deployment import Deployment, Secrets, install_operator, operator_away
from tools.product.local import Control, Gateway

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
