"""From files to measured uncertainty and biomarkers: one case, a cohort, a pair of scans."""
