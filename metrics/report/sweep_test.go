package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// result returns a number that was reported once.
func result(x float64) *metrics.Scalar { return &metrics.Scalar{Last: x, Min: x, Max: x, N: 1} }

// swept builds a sweep over some lists. loss returns a task's result.
func swept(lists map[string][]string, names []string, loss func(map[string]string) float64) *Sweep {
	s := &Sweep{Name: "swept", Params: names}
	rows := []map[string]string{{}}
	for _, n := range names {
		var next []map[string]string
		for _, row := range rows {
			for _, v := range lists[n] {
				one := map[string]string{n: v}
				for k, w := range row {
					one[k] = w
				}
				next = append(next, one)
			}
		}
		rows = next
	}
	for i, row := range rows {
		s.Tasks = append(s.Tasks, SweepTask{Index: i + 1, Params: row, Ending: Done, Results: metrics.Results{"loss": result(loss(row))}})
	}
	return s
}

func TestRank(t *testing.T) {
	tasks := func() []SweepTask {
		series := &metrics.Scalar{Last: 5, Min: 0.5, Max: 9, N: 3}
		return []SweepTask{
			{Index: 1, Ending: failed, Results: metrics.Results{"loss": result(0)}},
			{Index: 2, Ending: Done, Results: metrics.Results{"loss": result(math.NaN())}},
			{Index: 3, Ending: Open, Results: metrics.Results{"loss": result(0.1)}},
			{Index: 4, Ending: Done, Results: metrics.Results{"loss": result(2)}},
			{Index: 5, Ending: Done, Results: metrics.Results{"loss": series}},
			{Index: 6, Ending: Done},
			{Index: 7, Ending: Done, Results: metrics.Results{"loss": result(math.Inf(1))}},
			{Index: 8, Ending: failed},
		}
	}
	tests := []struct{ best, want string }{
		{"loss", "[4 5 7 2 6 3 1 8]"},
		{"+loss", "[7 5 4 2 6 3 1 8]"},
		{"", "[4 5 7 2 6 3 1 8]"},
		{"loss.min", "[5 4 7 2 6 3 1 8]"},
		{"+loss.max", "[7 5 4 2 6 3 1 8]"},
	}
	for _, test := range tests {
		s := &Sweep{Tasks: tasks()}
		if err := s.Rank(test.best); err != nil {
			t.Errorf("Rank(%q): %v", test.best, err)
			continue
		}
		var got []int
		for _, one := range s.Tasks {
			got = append(got, one.Index)
		}
		if fmt.Sprint(got) != test.want {
			t.Errorf("Rank(%q) = %v; want %s", test.best, got, test.want)
		}
	}
	none := (*NoResultError)(nil)
	if err := (&Sweep{Tasks: tasks(), Columns: []string{"loss.min", "los"}}).Rank(""); !errors.As(err, &none) || none.Name != "los" {
		t.Errorf("an unknown column: %v", err)
	}
	if err := (&Sweep{Tasks: tasks()}).Rank("acc"); !errors.As(err, &none) || err.Error() != `no task has a result "acc"; there are loss` {
		t.Errorf("an unknown result: %v", err)
	}
}

func TestGuess(t *testing.T) {
	tests := []struct {
		names string
		best  string
		high  bool
	}{
		{"epoch loss lr", "loss", false},
		{"accuracy steps", "accuracy", true},
		{"acc train_loss val_loss", "val_loss", false},
		{"train/loss validation/accuracy", "validation/accuracy", true},
		{"time", "time", false},
		{"lossless glossy", "", false},
		{"Loss/test Loss/train", "Loss/test", false},
		{"val_dice_loss", "val_dice_loss", false},
		{"iou_loss", "iou_loss", false},
		{"loss_iou", "loss_iou", false},
		{"reward_loss", "reward_loss", false},
		{"score_error", "score_error", false},
		{"f1_score", "f1_score", true},
		{"", "", false},
	}
	for _, test := range tests {
		if best, high := guess(strings.Fields(test.names)); best != test.best || high != test.high {
			t.Errorf("guess(%s) = %q, %v; want %q, %v", test.names, best, high, test.best, test.high)
		}
	}
}

// wellFormed checks that a chart's content is valid XML.
func wellFormed(t *testing.T, body string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader("<svg>" + body + "</svg>")); ; {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatalf("the chart is not XML: %v\n%s", err, body)
		}
	}
}

func TestSweepCharts(t *testing.T) {
	lists := map[string][]string{"lr": {"0.1", "0.01", "1e-5"}, "seed": {"1", "2", "10"}, "opt": {"adam", "sgd"}}
	loss := func(p map[string]string) float64 {
		lr, _ := strconv.ParseFloat(p["lr"], 64)
		return lr + float64(len(p["opt"]))
	}
	tests := []struct {
		params string
		title  string
		count  map[string]int // of parts of the chart
	}{
		{"lr", "loss over lr", map[string]int{"<circle": 3, "<polyline": 1}},
		{"lr seed", "loss by lr and seed (the stronger the colour, the better)", map[string]int{"fill-opacity": 9, ">1e-5<": 1}},
		{"lr seed opt", "Parameters and loss (the stronger the colour, the better; the best task is wide)", map[string]int{"<polyline": 18, `stroke-width="3"`: 1, ">adam<": 1}},
	}
	for _, test := range tests {
		s := swept(lists, strings.Fields(test.params), loss)
		testenv.Check(t, s.Rank(""))
		c, ok := s.chart()
		if !ok || c.Title != test.title {
			t.Errorf("%s: the chart is %q; want %q", test.params, c.Title, test.title)
		}
		wellFormed(t, string(c.Body))
		for part, n := range test.count {
			if got := strings.Count(string(c.Body), part); got != n {
				t.Errorf("%s: %q occurs %d times; want %d", test.params, part, got, n)
			}
		}
		for _, bad := range []string{"NaN", "Inf"} {
			if strings.Contains(string(c.Body), bad) {
				t.Errorf("%s: a position is %s", test.params, bad)
			}
		}
	}
}

// TestShades: the better result is never lighter.
func TestShades(t *testing.T) {
	for _, best := range []string{"loss", "+loss"} {
		s := swept(map[string][]string{"x": {"1", "2", "3", "4"}}, []string{"x"}, func(p map[string]string) float64 {
			x, _ := strconv.ParseFloat(p["x"], 64)
			return math.Pow(10, 3*x)
		})
		testenv.Check(t, s.Rank(best))
		ranks, before := s.ranks(), 2.0
		for _, x := range ranks {
			g := s.good(ranks, x)
			if !(g < before && g >= 0 && g <= 1) {
				t.Errorf("%s: %g is as good as %g, after %g", best, x, g, before)
			}
			before = g
		}
		if g := s.good(ranks, ranks[0]); g != 1 {
			t.Errorf("%s: the best is as good as %g", best, g)
		}
	}
}

// TestHostileSweep: names of results are treated as text, and all positions are numbers.
func TestHostileSweep(t *testing.T) {
	evil := `<script>alert(1)</script>"'&`
	s := swept(map[string][]string{evil: {evil, "b"}, "n": {"1e308", "-1e308", "NaN"}, "m": {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "1e-300"}}, []string{evil, "n", "m"},
		func(map[string]string) float64 { return 1e308 })
	s.Name = evil
	for i := range s.Tasks {
		s.Tasks[i].Results = metrics.Results{evil: result([]float64{1e308, -1e308, 5, math.Inf(1)}[i%4])}
	}
	testenv.Check(t, s.Rank(evil))
	if sec := s.Section(false); len(sec.Charts) > 0 {
		t.Error("a terminal gets a chart")
	}
	sec := s.Section(true)
	for _, c := range sec.Charts {
		wellFormed(t, string(c.Body))
		if strings.Contains(string(c.Body), "NaN,") || strings.Contains(string(c.Body), "Inf,") {
			t.Errorf("a position is not a number: %s", c.Body)
		}
	}
	var page bytes.Buffer
	testenv.Check(t, (Sections{sec}).HTML(&page, evil))
	if len(sec.Charts) == 0 || strings.Contains(page.String(), "<script") {
		t.Errorf("%d charts; the page has a script: %v", len(sec.Charts), strings.Contains(page.String(), "<script"))
	}
}

// TestHostileScale: large, tiny and equal results have positions, in curves and heat maps.
func TestHostileScale(t *testing.T) {
	noNumber := regexp.MustCompile(`="[^"]*(NaN|Inf)`)
	var equal scale
	if equal.between([]float64{1e17, 1e17}); !(equal.low < 1e17 && 1e17 < equal.high) {
		t.Errorf("the scale of 1e17 has the range %g to %g", equal.low, equal.high)
	}
	for _, results := range [][]float64{{1e17, 1e17}, {1e308, 1e308}, {math.MaxFloat64, -math.MaxFloat64}, {0, 5e-324}, {1e308, 1e-308}} {
		for _, names := range []string{"x", "x y", "x y z"} {
			s := swept(map[string][]string{"x": {"a", "b"}, "y": {"a", "a", "b"}, "z": {"a", "b"}}, strings.Fields(names), func(map[string]string) float64 { return 0 })
			s.Tasks = append(s.Tasks, s.Tasks...)
			for i := range s.Tasks {
				s.Tasks[i].Results = metrics.Results{"loss": result(results[i/2%2])}
			}
			testenv.Check(t, s.Rank("loss"))
			c, ok := s.chart()
			if bad := noNumber.FindString(string(c.Body)); !ok || bad != "" {
				t.Errorf("%g over %s: a position is %s", results, names, bad)
			}
			if strings.Contains(string(c.Body), "Inf<") {
				t.Errorf("%g over %s: a tick is infinite", results, names)
			}
		}
	}
}

// TestLargeSweep: a chart of many tasks is limited in size.
func TestLargeSweep(t *testing.T) {
	s := &Sweep{Params: []string{"x"}}
	for i := range 3 * maxLines {
		s.Tasks = append(s.Tasks, SweepTask{Index: i, Params: map[string]string{"x": fmt.Sprintf("v%d", i)}, Ending: Done, Results: metrics.Results{"loss": result(float64(i))}})
	}
	testenv.Check(t, s.Rank("loss"))
	c, ok := s.chart()
	if n := strings.Count(string(c.Body), "<circle"); !ok || n != maxLines {
		t.Errorf("%d marks; want %d", n, maxLines)
	}
	if len(c.Body) > 400*maxLines {
		t.Errorf("the chart has %d bytes", len(c.Body))
	}
}

// TestSweepCSV: the name of a result is not a formula.
func TestSweepCSV(t *testing.T) {
	s := &Sweep{Name: "=a()", Params: []string{"+p"}, Tasks: []SweepTask{{Index: 1, Ending: Done, Params: map[string]string{"+p": "@x"}, Results: metrics.Results{"=b()": result(-1)}}}}
	var out bytes.Buffer
	testenv.Check(t, s.CSV(&out))
	if want := "job,task,ending,'+p,'=b()\n'=a(),1,done,'@x,-1\n"; out.String() != want {
		t.Errorf("CSV is\n%swant\n%s", &out, want)
	}
}
