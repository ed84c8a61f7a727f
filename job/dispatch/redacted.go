package dispatch

// Redacted returns a copy of the submission without the values of variables.
func (s *Submission) Redacted() *Submission {
	c := *s
	c.Job = s.Job.Redacted()
	return &c
}
