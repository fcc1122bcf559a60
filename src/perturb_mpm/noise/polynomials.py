"""The polynomials by which both engines turn random bits into noise, in float32.

Each is a tuple of coefficients c₀ … c_d, the highest power first. All are evaluated by Horner's
rule with fused multiplications, p ← p·x + c, so that the engines agree to the last bit.

    LOG2            log2(1 + x) / x             x from √½ − 1 to √2 − 1; 3e-7 of itself
    NORMAL_NEAR     Φ⁻¹(u) / (2u − 1)           x = w − 2.5, w = −log(4u(1 − u)) < 5; 1e-6 of itself
    NORMAL_FAR      Φ⁻¹(u) / (2u − 1)           x = √w − 3, w ≥ 5
    GUMBEL_BELOW    −γ = log(−log Φ(g))         x = 2g/FARTHEST + 1, −FARTHEST ≤ g < 0; 2e-6
    GUMBEL_ABOVE    −γ = log(−log Φ(g))         x = 2g/FARTHEST − 1, 0 ≤ g ≤ FARTHEST

The variable w is that of Giles, "Approximating the erfinv function", 2011; the polynomials are
fitted for Φ⁻¹. log(−log Φ) is smooth on either side of 0, and fitted at Chebyshev's points.
"""

from __future__ import annotations

LOG2 = (
    *(-0.14581151, 0.2340423, -0.24887688, 0.2870987),
    *(-0.36023962, 0.48092324, -0.7213528, 1.4426949),
)
NORMAL_NEAR = (
    *(4.46336e-07, -4.5056399e-06, -5.7898737e-06, 0.0003073604),
    *(-0.0017743169, -0.0059061232, 0.34880364, 2.1233132),
)
NORMAL_FAR = (
    *(0.0015257753, -0.0050542615, 0.0082851034, -0.010817106),
    *(0.013323988, 1.4165833, 4.0064349),
)
GUMBEL_BELOW = (
    *(0.000305782538, 0.000444290257, -0.000785692944, -0.00445456104, -0.0157711767),
    *(-0.0499926843, -0.145748794, -0.419648677, -1.41122794, 1.68036616),
)
GUMBEL_ABOVE = (
    *(-0.00240720599, 0.00449677929, 0.00946441758, -0.0229482353, -0.0111439014),
    *(0.0575920045, -0.0226728879, -0.0875128135, 0.181933001, -0.234888434),
    *(-3.0322957, -7.59253025, -5.3651824),
)
