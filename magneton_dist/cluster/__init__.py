"""Ray and processes: where the job runs, who watches it, and how nothing of it is left behind."""
