package report

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"hpcc/metrics"
	"hpcc/testdata/helpers/testenv"
)

// hostile is text that an attacker may put into a name.
const hostile = "</title></svg></style><script>alert(1)</script><img src=x onerror=alert(1)>\" onload=\"x' url(https://evil.example/x) \x1b[2J\x1b]0;t\a\u202e\r\n| a | b |\n=cmd|' /C calc'!A0 [x](javascript:alert(1)) https://evil.example ![i](//evil.example/p.png) {{.}}"

func hostileReport(t testing.TB) *Report {
	bad := power
	bad.host, bad.cpu, bad.kernel, bad.arch = hostile, hostile, hostile, hostile
	spoil := func(k int, h *metrics.Header, f *metrics.Footer) {
		h.Command, h.Image, h.Hpcc = []string{hostile}, hostile, hostile
		h.Job.Name, h.Job.ID, h.Job.Target, h.Job.Params = hostile, hostile, hostile, map[string]string{hostile: hostile}
		h.Machine.GPUs[0].Name, h.Machine.GPUs[0].Driver = hostile, hostile
		if k == 1 {
			f.Signal, f.Exit = hostile, -1
		}
		if k == 2 {
			f.Problem = hostile
		}
	}
	p := &Prices{Currency: hostile, Node: map[string]nodePrice{plain(hostile): {Hour: 1}, plain("b" + hostile): {Hour: 1}}}
	r, err := Read([]Source{{Name: hostile, Runs: bad.write(t, 5, spoil), Warnings: []string{hostile}}, {Name: "b" + hostile, Runs: bad.write(t, 5, spoil)}}, Options{Prices: p})
	testenv.Check(t, err)
	for _, s := range r.Systems {
		if s.Figures[costName].Sum == 0 {
			t.Fatalf("no run of %q has a price", s.Name)
		}
	}
	r.Systems[0].Advice = []string{hostile}
	r.Sections = []Section{{Title: hostile, Text: []string{hostile}, Table: &Table{Caption: hostile, Head: []string{hostile}, Rows: [][]string{{hostile}}}}}
	return r
}

func rendered(t testing.TB, write func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	testenv.Check(t, write(&b))
	return b.String()
}

// harmlessElements lists all elements that a page may have, and harmlessAttributes their
// attributes. None of them loads or runs anything.
var (
	harmlessElements   = regexp.MustCompile(`^(html|head|meta|title|style|body|main|h1|h2|h3|div|p|strong|ul|li|table|caption|thead|tbody|tr|th|td|figure|figcaption|details|summary|section|footer|svg|title|desc|line|rect|text|polyline|circle|path)$`)
	harmlessAttributes = regexp.MustCompile(`^(lang|charset|http-equiv|content|name|class|scope|role|tabindex|aria-label|viewbox|preserveaspectratio|x|y|x1|y1|x2|y2|cx|cy|r|d|width|height|points|text-anchor)$`)
)

// checkPage parses a page as a browser does and refuses anything that could load or run
// something.
func checkPage(t testing.TB, page string) {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	testenv.Check(t, err)
	policy := false
	for n := range doc.Descendants() {
		switch {
		case n.Type == html.CommentNode:
			t.Errorf("the page has a comment: %q", n.Data)
		case n.Type != html.ElementNode:
			continue
		case !harmlessElements.MatchString(n.Data):
			t.Errorf("the page has an element <%s>", n.Data)
		case n.Data == "style" && (strings.Contains(n.FirstChild.Data, "url(") || strings.Contains(n.FirstChild.Data, "@import")):
			t.Error("the style loads something")
		}
		for _, a := range n.Attr {
			if !harmlessAttributes.MatchString(strings.ToLower(a.Key)) {
				t.Errorf("<%s> has the attribute %s=%q", n.Data, a.Key, a.Val)
			}
			policy = policy || strings.HasPrefix(a.Val, "default-src 'none'")
		}
	}
	if !policy {
		t.Error("the page has no content security policy")
	}
}

func TestHostileText(t *testing.T) {
	r := hostileReport(t)
	page := rendered(t, r.HTML)
	checkPage(t, page)
	for name, text := range map[string]string{"text": rendered(t, r.Text), "markdown": rendered(t, r.Markdown), "HTML": page} {
		if i := strings.IndexFunc(text, func(c rune) bool { return (c != '\n' && c < ' ') || c == 0x202e || (c >= 0x7f && c < 0xa0) }); i >= 0 {
			t.Errorf("%s has a control character: %q", name, text[max(0, i-20):i+20])
		}
	}
	md := rendered(t, r.Markdown)
	for _, bad := range []string{"<script", "<img", `[^\\]\]\(`, `[^\\]!?\[`, "https://"} {
		if found := regexp.MustCompile(bad).FindString(md); found != "" {
			t.Errorf("Markdown has %q", found)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(rendered(t, r.CSV))).ReadAll()
	testenv.Check(t, err)
	for _, row := range rows {
		for _, c := range row {
			if strings.HasPrefix(c, "=") || strings.HasPrefix(c, "@") {
				t.Errorf("CSV has a formula: %q", c)
			}
		}
	}
	for in, want := range map[string]string{"=1+1": "'=1+1", "@x": "'@x", "-x": "'-x", "-3": "-3", strings.Repeat("é", 5000): strings.Repeat("é", 5000), "a\x1bb": `a\x1bb`, "+1e5": "+1e5", "lr": "lr", "": ""} {
		if got := harmless(in); got != want {
			t.Errorf("harmless(%q) = %q; want %q", in, got, want)
		}
	}
	b, err := r.JSON()
	if err != nil || bytes.Count(b, []byte("\n")) != 1 || !json.Valid(b) {
		t.Errorf("JSON: %v", err)
	}
}

// TestPage checks that the page of the golden report is harmless, and that its charts have text
// alternatives.
func TestPage(t *testing.T) {
	page := rendered(t, two(t).HTML)
	checkPage(t, page)
	svgs := strings.Count(page, "<svg ")
	if svgs < 8 || strings.Count(page, `<svg role="img"`) != svgs || strings.Count(page, "<desc>") != svgs {
		t.Errorf("%d charts; each must have a role, a title and a description", svgs)
	}
	for _, bad := range []string{"src=", "href", "url(", "http:", "https:", "NaN", "Inf"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// FuzzReport checks that a report of any record can be written in each format, and that its page
// is harmless.
func FuzzReport(f *testing.F) {
	dir := f.TempDir()
	for _, r := range two(f).Systems {
		h, _ := json.Marshal(r.Tasks[0].Header)
		foot, _ := json.Marshal(r.Tasks[0].Footer)
		f.Add(string(h) + "\n" + `{"kind":"sample","t":1,"cpu_s":2,"rss_bytes":5,"gpus":[{"utilisation":50}]}` + "\n" + `{"kind":"sample","t":2,"cpu_s":3,"rss_bytes":9}` + "\n" + string(foot) + "\n")
	}
	f.Add(`{"kind":"header"}` + "\n" + `{"kind":"footer","wall_s":1e300,"usage":{"user_s":-1}}`)
	f.Add(`{"kind":"header","machine":{"host":"worker-1"}}` + "\n" + `{"kind":"footer","wall_s":9,"gpus":[{"energy_j":1.7e308},{"energy_j":1.7e308}]}`)
	other := power.write(f, 2, nil)
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(dir, "run.jsonl")
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o600))
		r, err := Read([]Source{{Name: "a", Runs: []Run{{File: file}, {File: file}}}, {Name: "b", Runs: other}}, Options{Different: true, Prices: prices})
		if err != nil {
			return
		}
		if b, err := r.JSON(); err != nil || !json.Valid(b) {
			t.Errorf("JSON: %v", err)
		}
		rendered(t, r.Text)
		rendered(t, r.Markdown)
		rendered(t, r.CSV)
		page := rendered(t, r.HTML)
		checkPage(t, page)
		if body := page[strings.Index(page, "<body>"):]; regexp.MustCompile(`="[^"]*(NaN|Inf)`).MatchString(body) {
			t.Error("the page has lengths that are not numbers")
		}
	})
}
