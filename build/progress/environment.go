package progress

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"hpcc/build"
	"hpcc/conda"
	"hpcc/text"
	"hpcc/text/terminal"
)

// moves prints a row for each package that differs from the export, lost packages first.
func (t *Steps) moves(e build.Event) {
	list := e.Moves
	count := map[conda.Fate]int{}
	for _, m := range list {
		count[m.Fate]++
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "FATE\tPACKAGE\tEXPORT\tINSTALLED\tWHY")
	var sums []string
	for _, fate := range conda.Fates() {
		if count[fate] > 0 {
			sums = append(sums, fmt.Sprintf("%d %s", count[fate], fate))
		}
		for _, m := range list {
			if m.Fate == fate && !fate.IsExact() {
				t.object("move", nil, "platform", e.Platform, "name", m.Name, "from", m.From, "to", m.To, "fate", m.Fate, "why", m.Why)
				terminal.Rowf(w, "%s\t%s\t%s\t%s\t%s\n", m.Fate, m.Name, cmp.Or(m.From, "-"), cmp.Or(m.To, "-"), m.Why)
			}
		}
	}
	w.Flush()
	if t.json == nil {
		rows := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
		for i := range rows {
			rows[i] = strings.TrimRight(rows[i], " ")
		}
		t.print(append(rows, "hpcc: "+prefix(e.Platform)+"packages: "+strings.Join(sums, ", "))...)
	}
}

// Downloads writes what a build would download, as a table or as JSON objects, and notes the sums.
// platform is "" for a build for one platform.
func (t *Steps) Downloads(out io.Writer, platform string, list []conda.Download, asJSON bool) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	head, column := "", ""
	if platform != "" {
		head, column = "PLATFORM\t", platform+"\t"
	}
	if !asJSON {
		fmt.Fprintln(w, head+"PACKAGE\tVERSION\tBUILD\tSIZE\tFROM")
	}
	var total, inCache int64
	unknown, cached := 0, 0
	for _, d := range list {
		total += d.Size
		from, bytes := d.URL, text.Size(d.Size)
		if d.Size == 0 {
			unknown++
			bytes = "-"
		}
		if d.Cached {
			inCache, cached, from = inCache+d.Size, cached+1, "(cached)"
		}
		if !asJSON {
			terminal.Rowf(w, "%s%s\t%s\t%s\t%s\t%s\n", terminal.Columns(column), d.Name,
				cmp.Or(d.Version, "-"), cmp.Or(d.Build, "-"), bytes, from)
			continue
		}
		if err := enc.Encode(struct {
			Type     string `json:"type"`
			Platform string `json:"platform,omitempty"`
			conda.Download
		}{"download", platform, d}); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("%s%d of %s would be fetched: %s of %s", prefix(platform), len(list)-cached,
		text.Count(len(list), "package", "packages"), text.Size(total-inCache), text.Size(total))
	if unknown > 0 {
		text += fmt.Sprintf(", and %d of unknown size", unknown)
	}
	t.Note(text)
	return w.Flush()
}
