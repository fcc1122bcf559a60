"""What ``tune`` is worth on cases left out, from all cases and from five."""

from lab.tuning.measuring import FewScore, RankScore, rank_dice, read_set, score_few

__all__ = ["FewScore", "rank_dice", "RankScore", "read_set", "score_few"]
