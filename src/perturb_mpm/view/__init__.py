"""``perturb-mpm view``: a run's maps in the browser, and corrections back to disk."""

from perturb_mpm.view.server import ViewServer
from perturb_mpm.view.session import Session, open_session

__all__ = [
    "open_session",
    "Session",
    "ViewServer",
]
