"""What several tests share: made-up problems, files and patients, and a browser."""
