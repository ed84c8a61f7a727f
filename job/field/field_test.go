package field

import (
	"reflect"
	"testing"

	"hpcc/job"
)

// TestBecome checks that a better fate never replaces a worse one, and that explanations add up.
func TestBecome(t *testing.T) {
	type step struct {
		fate Fate
		how  string
	}
	for _, c := range []struct {
		steps []step
		want  step
	}{
		{[]step{{"", "minutes"}}, step{"", "minutes"}},
		{[]step{{Kept, ""}, {Changed, "a"}, {Emulated, "b"}}, step{Changed, "a; b"}},
		{[]step{{Changed, "a"}, {Changed, "a"}}, step{Changed, "a"}},
		{[]step{{Changed, "a"}, {Refused, "b"}}, step{Refused, "b"}},
		{[]step{{Refused, "a"}, {Refused, "b"}, {Kept, "c"}}, step{Refused, "a; b"}},
	} {
		r := &Row{}
		for _, s := range c.steps {
			r.Become(s.fate, s.how)
		}
		if r.Fate != c.want.fate || r.How != c.want.how {
			t.Errorf("%v: %s, %q; want %v", c.steps, r.Fate, r.How, c.want)
		}
	}
}

// TestRefuse refuses one of several fields: the explanation names it, and the row keeps the other.
func TestRefuse(t *testing.T) {
	one, two, other := &Row{}, &Row{}, &Row{}
	one.Fills(GPUs)
	two.Fills(GPUs, GPUType)
	two.Become(Changed, "1 on each node")
	other.Fills(Time)
	rows := Rows{one, two, other}
	rows.Refuse("no such type", GPUType)
	rows.Refuse("no GPUs", GPUs)
	rows.SetFate(Changed, "rounded", Time, GPUs)
	for _, c := range []struct {
		row  *Row
		fate Fate
		how  string
	}{{one, Refused, "no GPUs"}, {two, Refused, "1 on each node; GPU type: no such type; gpus: no GPUs"}, {other, Changed, "rounded"}} {
		if c.row.Fate != c.fate || c.row.How != c.how {
			t.Errorf("%s, %q; want %s, %q", c.row.Fate, c.row.How, c.fate, c.how)
		}
	}
	if !two.Has(GPUType, Name) || two.Has(Name) || (&Row{}).Filled() {
		t.Error("the fields of a row are wrong")
	}
}

// TestOverrule checks what later options and flags do to rows.
func TestOverrule(t *testing.T) {
	refused, kept, superseded, other := &Row{}, &Row{}, &Row{}, &Row{}
	for _, r := range []*Row{refused, kept, superseded} {
		r.Fills(Time)
	}
	refused.Void("not a time")
	if refused.Filled() || refused.Fate != Refused {
		t.Errorf("a refused row: %+v", refused)
	}
	superseded.Supersede("line 3 overrides it")
	for _, r := range []*Row{refused, kept, superseded, other} {
		r.Overrule(Time, "--time overrides it")
	}
	for _, c := range []struct {
		row *Row
		how string
	}{{refused, "--time overrides it"}, {kept, "--time overrides it"}, {superseded, "line 3 overrides it"}, {other, ""}} {
		if c.row.How != c.how || (c.how != "") != (c.row.Fate == Changed) {
			t.Errorf("%+v; want %q", c.row, c.how)
		}
	}
}

// TestClear checks that each field can be read and cleared, and that no two fields have one value.
func TestClear(t *testing.T) {
	main := map[uintptr]Field{}
	j := &job.Job{}
	for f := range values {
		for i, p := range f.At(j) {
			v := reflect.ValueOf(p)
			if other, taken := main[v.Pointer()]; taken && i == 0 && f != GPUType && other != GPUs {
				t.Errorf("%s and %s are the same value", f, other)
			}
			if i == 0 {
				main[v.Pointer()] = f
			}
			set(v.Elem())
			if v.Elem().IsZero() {
				t.Errorf("%s: the test cannot set %s", f, v.Type())
			}
		}
		if f.Clear(j); !reflect.DeepEqual(j, &job.Job{}) {
			t.Fatalf("after clearing %s: %+v", f, j)
		}
	}
	Run.Clear(j) // no target refuses it
	if Run.At(j) != nil {
		t.Error("a field without values has one")
	}
}

// set gives a value other than zero.
func set(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Struct:
		set(v.Field(0))
	}
}
