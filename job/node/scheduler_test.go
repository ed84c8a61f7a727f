package node

import "testing"

func TestStatus(t *testing.T) {
	known := Schedulers{{Name: "a", IDs: []string{"A_ID"}, Requests: []int{99, 100}}, {Name: "b", IDs: []string{"B_ID"}}}
	for _, c := range []struct {
		variable   string
		exit, want int
	}{
		{"A_ID", 99, 1}, {"A_ID", 100, 1}, {"A_ID", 0, 0}, {"A_ID", 98, 98}, {"A_ID", 137, 137}, {"B_ID", 99, 99}, {"", 99, 99},
	} {
		getenv := func(name string) string {
			if name == c.variable {
				return "7"
			}
			return ""
		}
		if got := known.Status(c.exit, getenv); got != c.want {
			t.Errorf("with %q, a program's status %d becomes %d; want %d", c.variable, c.exit, got, c.want)
		}
	}
}
