"""``perturb-mpm view``: a run's maps in the browser, and corrections back to disk."""

from perturb_mpm.view.conditioning import Influence, PaintedNoise
from perturb_mpm.view.correction import Corrector
from perturb_mpm.view.server import ViewServer
from perturb_mpm.view.session import Session, open_session, take_label_map

__all__ = [
    "Corrector",
    "Influence",
    "open_session",
    "PaintedNoise",
    "Session",
    "take_label_map",
    "ViewServer",
]
