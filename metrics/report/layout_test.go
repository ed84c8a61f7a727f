package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"hpcc/testdata/helpers/testenv"
)

// browser returns the path of a browser of the Chromium family.
func browser() (string, error) {
	for _, name := range []string{"chromium", "chromium-headless-shell", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("not installed (Debian: chromium-headless-shell)")
}

// host shows PAGE in a frame as wide as a phone, opens all its details, and replaces its own
// content with the measurements.
const host = `<!DOCTYPE html>
<iframe width="390" height="844" frameborder="0" srcdoc="PAGE"></iframe>
<script>
onload = () => {
	const doc = document.querySelector("iframe").contentDocument, broken = [];
	doc.querySelectorAll("details").forEach(d => d.open = true);
	const texts = doc.createTreeWalker(doc.body, NodeFilter.SHOW_TEXT);
	let numbers = 0;
	for (let n; n = texts.nextNode();) {
		if (n.parentElement.closest("svg")) continue;
		for (const m of n.data.matchAll(/(?<![\w.@=-])[0-9][0-9.:hms]*(?:%|\u00a0[A-Za-zµ×]+)?(?![\w-])/g)) {
			const range = doc.createRange();
			range.setStart(n, m.index);
			range.setEnd(n, m.index + m[0].length);
			const lines = new Set([...range.getClientRects()].map(r => Math.round(r.top)));
			numbers++;
			if (lines.size > 1) broken.push(m[0]);
		}
	}
	document.body.textContent = JSON.stringify({over: doc.documentElement.scrollWidth - doc.documentElement.clientWidth, numbers, broken});
};
</script>`

// TestPhone measures pages in a browser window 390 px wide: no page scrolls sideways, and no
// number is broken over two lines.
func TestPhone(t *testing.T) {
	testenv.Slow(t)
	path, err := browser()
	testenv.Need(t, "a browser", err)
	var many []Source
	for k := range 4 {
		many = append(many, Source{Name: fmt.Sprintf("a-system-with-a-long-name-%d", k), Runs: power.write(t, 6, nil)})
	}
	four, err := Read(many, Options{Prices: prices})
	testenv.Check(t, err)
	sweep := swept(map[string][]string{"lr": {"0.1", "0.01", "0.001"}, "seed": {"1", "2"}}, []string{"lr", "seed"}, func(map[string]string) float64 { return 0.123456 })
	testenv.Check(t, sweep.Rank(""))
	sections := Sections{sweep.Section(true)}
	for name, write := range map[string]func(io.Writer) error{"two systems": two(t).HTML, "four systems": four.HTML, "hostile names": hostileReport(t).HTML, "a sweep": func(w io.Writer) error { return sections.HTML(w, "sweep") }} {
		got := measurePage(t, path, rendered(t, write))
		if got.Over > 0 || got.Numbers < 10 || len(got.Broken) > 0 {
			t.Errorf("%s: the page is %d px too wide; of %d numbers, these are broken over two lines: %q", name, got.Over, got.Numbers, got.Broken)
		}
	}
}

// A layout holds the measurements of the host page, as JSON.
type layout struct {
	Over    int      // pixels beyond the width of the frame
	Numbers int      // numbers on the page
	Broken  []string // numbers that are broken over two lines
}

// measurePage measures a page in a browser window as wide as a phone.
func measurePage(t *testing.T, browser, page string) (got layout) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "host.html")
	testenv.Check(t, os.WriteFile(file, []byte(strings.Replace(host, "PAGE", html.EscapeString(page), 1)), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+filepath.Join(dir, "profile"), "--virtual-time-budget=10000", "--dump-dom", "file://"+file)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	dom, err := cmd.Output()
	testenv.Check(t, err)
	if found := regexp.MustCompile(`\{.*\}`).Find(dom); json.Unmarshal(found, &got) != nil {
		t.Fatalf("the browser printed\n%s", dom)
	}
	return got
}

func TestUnbroken(t *testing.T) {
	for in, want := range map[string]string{
		"8.70 GiB (8.60 – 8.81 GiB)": "8.70~GiB (8.60~– 8.81~GiB)",
		"3.12 × longer (6 of 8)":     "3.12~×~longer (6 of 8)",
		"lr=0.001 and 12 s, 2m01s –": "lr=0.001 and 12~s, 2m01s~–",
		"0.02 EUR (0.01 – 0.03 EUR)": "0.02~EUR (0.01~– 0.03~EUR)",
		"b ÷ a: 1.98":                "b ÷ a: 1.98",
		"–":                          "–",
		"":                           "",
	} {
		if got := strings.ReplaceAll(unbroken(in), "\u00a0", "~"); got != want {
			t.Errorf("unbroken(%q) = %q; want %q", in, got, want)
		}
	}
}

// TestAccessible checks that headings skip no level, that header cells and scrolling boxes have
// names, and that no line breaks between a number and its unit.
func TestAccessible(t *testing.T) {
	r := two(t)
	r.Sections = []Section{{Title: "Section", Text: []string{"text"}, Table: &Table{Head: []string{"a"}, Rows: [][]string{{"1"}}}}}
	doc, err := html.Parse(strings.NewReader(rendered(t, r.HTML)))
	testenv.Check(t, err)
	level, cells := 0, 0
	separated := regexp.MustCompile(`\d ([KMGTP]i)?B\b|\d m?s\b|\d k?Wh\b`)
	for n := range doc.Descendants() {
		text := textOf(n)
		switch n.DataAtom {
		case atom.H1, atom.H2, atom.H3:
			next := int(n.Data[1] - '0')
			if next > level+1 || (next == 1) != (level == 0) {
				t.Errorf("%q has level %d after level %d", text, next, level)
			}
			level = next
		case atom.Th:
			if text == "" {
				t.Error("a header cell is empty")
			}
		case atom.Td:
			cells++
			if found := separated.FindString(text); found != "" {
				t.Errorf("a line may break within %q in the cell %q", found, text)
			}
			if regexp.MustCompile(`^[0-9.]+\x{a0}`).MatchString(text) && attribute(n, "class") != "number" {
				t.Errorf("the cell %q of a number lacks the class number", text)
			}
		case atom.Div:
			scrolls := n.FirstChild != nil && n.FirstChild.DataAtom == atom.Table
			if scrolls && (attribute(n, "tabindex") != "0" || attribute(n, "aria-label") == "" || attribute(n, "role") == "") {
				t.Error("the keyboard cannot scroll a table")
			}
		}
	}
	if level == 0 || cells < 50 {
		t.Errorf("last heading level %d, %d cells; want headings and at least 50 cells", level, cells)
	}
	for _, rule := range []string{"tbody th, .number, thead th:first-child { overflow-wrap: normal; }", "h1, h2, h3, h2 + p, thead, tr:nth-child(-n+3):not(:last-child), li:nth-child(-n+2):not(:last-child) { break-after: avoid; }", "figure, tr, li, .notes { break-inside: avoid; }", "max-width: 46rem"} {
		if !strings.Contains(page, rule) {
			t.Errorf("the style has no %q", rule)
		}
	}
}

// textOf returns the text of a node.
func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}
