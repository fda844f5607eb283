"""The product as a user installs it: images, a deployment in a cluster, local processes, a client of the admin API."""

from tools.product.admin import Admin
from tools.product.build import images
from tools.product.deployment import Deployment, Secrets, install_operator, operator_stopped
from tools.product.local import Control, Gateway

__all__ = [
    "Admin",
    "Control",
    "Deployment",
    "Gateway",
    "Secrets",
    "images",
    "install_operator",
    "operator_stopped",
]
