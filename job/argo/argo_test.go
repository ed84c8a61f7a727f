package argo

import (
	"context"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/testdata/helpers/jobtest"
	"hpcc/testdata/helpers/testenv"
)

func TestDebug(t *testing.T) {
	for in, want := range map[string]string{
		"python main.py --x 1":              "python -m debugpy --listen 0.0.0.0:5678 --wait-for-client main.py --x 1",
		"/opt/conda/bin/python3.12 -u -m a": "/opt/conda/bin/python3.12 -u -m debugpy --listen 0.0.0.0:5678 --wait-for-client -m a",
		"python -c print(1)":                "", "python": "", "python -X dev a.py": "", "bash a.sh": "", "pythonic a.py": "",
	} {
		j := jobtest.With(func(j *job.Job) { j.Args = strings.Fields(in) })
		err := j.Debug()
		if got := strings.Join(j.Args, " "); (want != "" && (err != nil || got != want || j.PortOf("debug") != 5678)) || (want == "" && err == nil) {
			t.Errorf("Debug(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
	w, err := Read("w.yaml", []byte(strings.Replace(threeSteps, `image: busybox, args: ["`, `image: busybox, command: [python, -u], args: [main.py, "`, 1)))
	testenv.Check(t, err)
	if names, err := w.Debug(); err != nil || !reflect.DeepEqual(names, []string{"step"}) || !reflect.DeepEqual(w.Ports(), []job.Port{job.DebugPort}) {
		t.Errorf("Debug: %q, %v, ports %v", names, err, w.Ports())
	}
	b, err := json.Marshal(w.root.items("spec", "templates")[1].at("container"))
	if want := `"command":["python"],"args":["-u","-m","debugpy","--listen","0.0.0.0:5678","--wait-for-client","main.py",`; err != nil || !strings.Contains(string(b), want) {
		t.Errorf("Debug: %s, %v", b, err)
	}
	if w, err = Read("w.yaml", []byte(threeSteps)); err == nil {
		_, err = w.Debug()
	}
	if err == nil || !strings.Contains(err.Error(), "no template of w.yaml") {
		t.Errorf("Debug: %v", err)
	}
}

// TestStepLogs leaves the lines of Argo's own program out, and nothing else.
func TestStepLogs(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	in := "a\n" + `time="2026-11-22T01:31:57.895Z" level=info msg="sub-process exited" argo=true error="<nil>"` + "\n" +
		`time="2026-11-22T01:31:57.895Z" level=warning msg="cannot save artifact" argo=true` + "\n" + `time=now level=info msg=mine` + "\n" + long + "\nlast"
	want := "a\n" + `time="2026-11-22T01:31:57.895Z" level=warning msg="cannot save artifact" argo=true` + "\n" + `time=now level=info msg=mine` + "\n" + long + "\nlast"
	r, err := stepLogs{textLog(in)}.Log(t.Context(), "", false)
	testenv.Check(t, err)
	if got, err := io.ReadAll(r); err != nil || string(got) != want {
		t.Errorf("log: %q, %v", got, err)
	}
}

// textLog is a log that is there.
type textLog string

func (l textLog) Log(context.Context, string, bool) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(string(l))), nil
}
func (textLog) Close() {}
