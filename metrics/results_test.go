package metrics

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"hpcc/testdata/helpers/testenv"
)

func same(a, b float64) bool { return a == b || (math.IsNaN(a) && math.IsNaN(b)) }

func checkResults(t *testing.T, got Results, want map[string]Scalar) {
	t.Helper()
	for name, w := range want {
		g := got[name]
		if g == nil {
			t.Errorf("%s is missing; want %+v", name, w)
		} else if !same(g.Last, w.Last) || !same(g.Min, w.Min) || !same(g.Max, w.Max) || g.N != w.N {
			t.Errorf("%s is %+v; want %+v", name, *g, w)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s exists: %+v", name, *got[name])
		}
	}
}

func once(x float64) Scalar { return Scalar{x, x, x, 1} }

// TestEvents reads the output of Google's protobuf library: see
// testdata/helpers/tensorboard/write.py.
func TestEvents(t *testing.T) {
	b, err := os.ReadFile("testdata/events.out.tfevents.recorded")
	testenv.Check(t, err)
	r := Results{}
	testenv.Check(t, r.readEvents(bytes.NewReader(b)))
	want := map[string]Scalar{
		"loss":           {0.75, 0.25, 2.5, 4},
		"nan/loss":       {math.NaN(), 1, 1, 2},
		"accuracy":       {0.875, 0.5, 0.875, 2},
		"content":        once(-1.5),
		"double":         once(1e300),
		"double.content": once(-1e300),
		"int":            once(-7),
		"int64":          once(-(1 << 40)),
		"half":           once(1.5),
		"bfloat16":       once(-1.5),
		"zero":           once(0),
		"a":              once(1),
		"b":              once(2),
	}
	checkResults(t, r, want)

	// if the end is truncated, everything before it is read
	for n := range b {
		r := Results{}
		if err := r.readEvents(bytes.NewReader(b[:n])); err != nil {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
		if n > len(b)-200 && r["loss"] == nil {
			t.Fatalf("the first %d bytes have no loss", n)
		}
	}
	// a changed byte is detected
	for _, at := range []int{0, 9, 13, 60, len(b) - 1} {
		bad := bytes.Clone(b)
		bad[at] ^= 1
		if err := (Results{}).readEvents(bytes.NewReader(bad)); err == nil || !strings.Contains(err.Error(), "checksum") {
			t.Errorf("byte %d was changed: %v", at, err)
		}
	}
}

// record frames data as TFRecord does.
func record(data []byte) []byte {
	head := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	b := binary.LittleEndian.AppendUint32(head, mask(crc32.Checksum(head, castagnoli)))
	return binary.LittleEndian.AppendUint32(append(b, data...), mask(crc32.Checksum(data, castagnoli)))
}

// scalarEvent returns an event with one simple value.
func scalarEvent(tag string, x float32) []byte {
	value := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), tag)
	value = protowire.AppendFixed32(protowire.AppendTag(value, 2, protowire.Fixed32Type), math.Float32bits(x))
	summary := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), value)
	return protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), summary)
}

func TestEventsAreBounded(t *testing.T) {
	var b bytes.Buffer
	b.Write(record(make([]byte, maxEvent+1))) // a picture, say
	for i := range maxTags + 50 {
		b.Write(record(scalarEvent(fmt.Sprint("t", i), 1)))
	}
	r := Results{}
	if err := r.readEvents(&b); err != nil || len(r) != maxTags {
		t.Errorf("%d tags, %v; want %d", len(r), err, maxTags)
	}
	// a false length
	head := binary.LittleEndian.AppendUint64(nil, 1<<40)
	head = binary.LittleEndian.AppendUint32(head, mask(crc32.Checksum(head, castagnoli)))
	if err := (Results{}).readEvents(bytes.NewReader(head)); err == nil {
		t.Error("a record of 1 TiB was taken")
	}
}

func TestReadJSON(t *testing.T) {
	tests := []struct {
		name, in string
		want     map[string]Scalar
		err      string
	}{
		{"flat", `{"loss": 0.25, "epochs": 3}`, map[string]Scalar{"loss": once(0.25), "epochs": once(3)}, ""},
		{"nested", `{"val": {"acc": 0.5, "top": {"5": 1e-3}}, "list": [1, 2], "note": "x", "none": null, "ok": true}`,
			map[string]Scalar{"val.acc": once(0.5), "val.top.5": once(1e-3), "ok": once(1)}, ""},
		{"as Python writes", `{"a": NaN, "b": -Infinity, "c": Infinity, "d": "it is NaN \" -Infinity", "e": -1}`,
			map[string]Scalar{"a": {math.NaN(), math.NaN(), math.NaN(), 1}, "b": once(math.Inf(-1)), "c": once(math.Inf(1)), "e": once(-1)}, ""},
		{"a list", `[1, 2]`, nil, "not a JSON object"},
		{"nothing", ``, nil, "not a JSON object"},
		{"deep", strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000), nil, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := Results{}
			err := r.readJSON(strings.NewReader(test.in))
			if (test.err == "" && err != nil) || (test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err))) {
				t.Errorf("error %v; want %q", err, test.err)
			}
			checkResults(t, r, test.want)
		})
	}
}

// TestReadJSONLists: a skipped list is not decoded, which would take fifty times its size.
func TestReadJSONLists(t *testing.T) {
	text := `{"list": [` + strings.Repeat("0,", 1<<21) + `0], "loss": 1}`
	r := Results{}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := r.readJSON(strings.NewReader(text))
	runtime.ReadMemStats(&after)
	if err != nil || r["loss"] == nil {
		t.Errorf("%d results, %v", len(r), err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 20*uint64(len(text)) {
		t.Errorf("reading %d bytes took %d", len(text), used)
	}
}

// TestManyEntries: unread event files are reported.
func TestManyEntries(t *testing.T) {
	dir := t.TempDir()
	for i := range maxEntries + 1 {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("a%05d", i)), nil, 0o600))
	}
	root, err := os.OpenRoot(dir)
	testenv.Check(t, err)
	defer root.Close()
	if _, err := ReadResults(root, ".", nil); err == nil || !strings.Contains(err.Error(), "more than 2000") {
		t.Errorf("of %d files: %v", maxEntries+1, err)
	}
}

// place creates a directory with files and opens it.
func place(t *testing.T, files map[string]string) (*os.Root, string) {
	t.Helper()
	dir := testenv.Tree(t, files)
	root, err := os.OpenRoot(dir)
	testenv.Check(t, err)
	t.Cleanup(func() { root.Close() })
	return root, dir
}

func TestReadResults(t *testing.T) {
	events := func(tag string, xs ...float32) string {
		var b []byte
		for _, x := range xs {
			b = append(b, record(scalarEvent(tag, x))...)
		}
		return string(b)
	}
	root, dir := place(t, map[string]string{
		"json/metrics.json":                       `{"loss": 1}`,
		"lines/metrics.jsonl":                     "{\"loss\": 3, \"step\": 1}\n{\"acc\": 0.5, \"step\": 2}\nnot json\n{\"loss\": 2, \"st",
		"both/metrics.json":                       `{"loss": 1}`,
		"both/metrics.jsonl":                      "{\"loss\": 9, \"lr\": 4}\n",
		"all/metrics.json":                        `{"loss": 3}`,
		"all/metrics.jsonl":                       "{\"loss\": 8}\n{\"loss\": 4}\n",
		"all/events.out.tfevents.1.h":             events("loss", 1, 5),
		"one/events.out.tfevents.1.h":             events("loss", 4, 2),
		"one/events.out.tfevents.2.h":             events("loss", 3),
		"below/run/events.out.tfevents.1.h":       events("loss", 4),
		"keras/train/events.out.tfevents.1.h":     events("epoch_loss", 4),
		"keras/validation/events.out.tfevents.1":  events("epoch_loss", 5),
		"long/metrics.jsonl":                      strings.Repeat("{\"loss\": 7}\n", 20000) + "{\"loss\": 6}\n",
		"wide/metrics.jsonl":                      "{\"loss\": 1}\n{\"loss\": 9, \"x\": \"" + strings.Repeat("x", 2*maxJSONLine) + "\"}\n{\"loss\": 2}\n",
		"bad/metrics.json":                        `{"loss": `,
		"bad/events.out.tfevents.1.h":             events("acc", 1) + "no record at all",
		"empty/readme":                            "hello",
		"far/1/2/3/4/5/6/events.out.tfevents.1.h": events("loss", 4),
		"far/1/2/3/events.out.tfevents.1.h":       events("loss", 5),
	})
	tests := []struct {
		at   string
		want map[string]Scalar
		err  string
	}{
		{"json", map[string]Scalar{"loss": once(1)}, ""},
		{"json/metrics.json", map[string]Scalar{"loss": once(1)}, ""},
		{"lines", map[string]Scalar{"loss": once(3), "acc": once(0.5), "step": {2, 1, 2, 2}}, ""},
		{"both", map[string]Scalar{"loss": {1, 1, 9, 2}, "lr": once(4)}, ""},
		{"all", map[string]Scalar{"loss": {3, 1, 8, 5}}, ""},
		{"one", map[string]Scalar{"loss": {3, 2, 4, 3}}, ""},
		{"below", map[string]Scalar{"loss": once(4)}, ""},
		{"keras", map[string]Scalar{"train/epoch_loss": once(4), "validation/epoch_loss": once(5)}, ""},
		{"long", map[string]Scalar{"loss": {6, 6, 7, 20001}}, ""},
		{"wide", map[string]Scalar{"loss": {2, 1, 2, 2}}, ""},
		{"bad", map[string]Scalar{"acc": once(1)}, "not a JSON object"},
		{"empty", nil, ""},
		{"nothing", nil, ""},
		{"far", map[string]Scalar{"loss": once(5)}, ""},
		{"../" + filepath.Base(dir), nil, "escapes"},
	}
	for _, test := range tests {
		t.Run(test.at, func(t *testing.T) {
			r, err := ReadResults(root, test.at, nil)
			if (test.err == "" && err != nil) || (test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err))) {
				t.Errorf("error %v; want %q", err, test.err)
			}
			checkResults(t, r, test.want)
		})
	}
}

func TestResultsOfATime(t *testing.T) {
	root, dir := place(t, map[string]string{"old/metrics.json": `{"loss": 1}`})
	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	testenv.Check(t, os.Chtimes(filepath.Join(dir, "old/metrics.json"), noon, noon))
	for _, since := range []time.Time{noon.Add(-time.Hour), noon.Add(time.Hour)} {
		r, err := ReadResults(root, "old", since.Before)
		if err != nil || (r != nil) != since.Before(noon) {
			t.Errorf("since %v there is %v, %v", since, r, err)
		}
	}
}

// TestResultsStayInside: links cannot lead out of the job's directory.
func TestResultsStayInside(t *testing.T) {
	outside := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(outside, "metrics.json"), []byte(`{"secret": 1}`), 0o644))
	root, dir := place(t, map[string]string{"own/x": ""})
	for link, to := range map[string]string{"dir": outside, "own/metrics.json": filepath.Join(outside, "metrics.json"), "own/deep": outside} {
		testenv.Check(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for _, at := range []string{"dir", "own", "own/metrics.json"} {
		if r, _ := ReadResults(root, at, nil); len(r) > 0 {
			t.Errorf("%s led out of the directory: %v", at, r)
		}
	}
}

// TestResultsPipe: reading does not block on a pipe.
func TestResultsPipe(t *testing.T) {
	root, dir := place(t, map[string]string{"1/metrics.jsonl": `{"loss":1}` + "\n"})
	testenv.Check(t, syscall.Mkfifo(filepath.Join(dir, "1", "metrics.json"), 0o600))
	over := make(chan error)
	go func() {
		r, err := ReadResults(root, "1", nil)
		checkResults(t, r, map[string]Scalar{"loss": once(1)})
		over <- err
	}()
	select {
	case err := <-over:
		if err == nil || !strings.Contains(err.Error(), "metrics.json: not a regular file") {
			t.Errorf("%v; want \"not a regular file\"", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("reading blocks on a pipe")
	}
}

func FuzzEvents(f *testing.F) {
	b, err := os.ReadFile("testdata/events.out.tfevents.recorded")
	testenv.Check(f, err)
	f.Add(b, false)
	f.Add(scalarEvent("loss", 1), true)
	f.Fuzz(func(t *testing.T, b []byte, framed bool) {
		if framed { // with checksums that are right the messages are reached
			b = record(b)
		}
		r := Results{}
		_ = r.readEvents(bytes.NewReader(b))
		for name, s := range r {
			if name == "" || s.N < 1 || s.Min > s.Max {
				t.Errorf("%q: %+v", name, *s)
			}
		}
	})
}

func FuzzReadJSON(f *testing.F) {
	f.Add([]byte(`{"a": NaN, "b": {"c": -Infinity, "d": "x\"NaN"}, "e": [1, {"f": 2}], "g": 1e999}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := Results{}
		_ = r.readJSON(bytes.NewReader(b))
		_ = r.readJSONLines(bytes.NewReader(b), int64(len(b)))
		for name, s := range r {
			if s.N < 1 || s.Min > s.Max {
				t.Errorf("%q: %+v", name, *s)
			}
		}
	})
}

// BenchmarkEvents reads an event file of 100 MB with pictures and scalars.
func BenchmarkEvents(b *testing.B) {
	var file bytes.Buffer
	picture := record(protowire.AppendBytes(protowire.AppendTag(nil, 4, protowire.BytesType), make([]byte, 1<<20)))
	for i := range 100 {
		file.Write(picture)
		for range 100 {
			file.Write(record(scalarEvent("loss", float32(i))))
		}
	}
	b.SetBytes(int64(file.Len()))
	for b.Loop() {
		testenv.Check(b, (Results{}).readEvents(bytes.NewReader(file.Bytes())))
	}
}
