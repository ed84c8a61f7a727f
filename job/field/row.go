package field

import (
	"slices"
	"strings"

	"hpcc/job"
)

// A Fate is the result of the translation of a directive.
type Fate string

// The fates of a directive.
const (
	Kept     Fate = "kept"     // the target has the same setting
	Changed  Fate = "changed"  // the target has a similar setting; Row.How explains the difference
	Emulated Fate = "emulated" // hpcc provides the setting on the target
	Refused  Fate = "refused"  // the translation lacks the setting; Row.How explains why
)

// severity orders the fates; [Row.Become] never lowers it.
var severity = map[Fate]int{Kept: 0, Emulated: 1, Changed: 2, Refused: 3}

// A Verdict is the fate of a field on a target that does not support it in the same way as
// the source. Fields without a verdict are kept.
type Verdict struct {
	Fate Fate
	How  string
	When func(j *job.Job) bool // nil: always
	Drop bool                  // the field is cleared in the job, as if it were refused
}

// A Row reports the fate of one option or line.
type Row struct {
	Line int    `json:"line,omitempty"` // of the script; 0 for the submit command and for defaults
	Text string `json:"text"`
	Fate Fate   `json:"fate"`
	How  string `json:"how,omitempty"`

	fields []Field // fields of the job that the row filled in
	voided []Field // fields that the row filled in before Void
}

// Fills records that the row fills in fields of the job.
func (r *Row) Fills(f ...Field) { r.fields = append(r.fields, f...) }

// Has reports whether the row filled in one of the fields.
func (r *Row) Has(f ...Field) bool {
	return slices.ContainsFunc(f, func(f Field) bool { return slices.Contains(r.fields, f) })
}

// Filled reports whether the row filled in any field.
func (r *Row) Filled() bool { return len(r.fields) > 0 }

// Become gives the row a fate, unless it has a worse one, and adds an explanation. A refused
// row keeps only the explanations of its refusal.
func (r *Row) Become(f Fate, how string) {
	if r.Fate == Refused && f != Refused {
		return
	}
	if r.Fate != Refused && f == Refused {
		r.How = ""
	}
	if severity[f] > severity[r.Fate] || r.Fate == "" {
		r.Fate = f
	}
	if how != "" && !strings.Contains(r.How, how) {
		if r.How != "" {
			how = r.How + "; " + how
		}
		r.How = how
	}
}

// Refuse refuses one field of the row. If the row has other fields, they stay in the job.
func (r *Row) Refuse(f Field, how string) {
	if len(r.fields) < 2 {
		r.Become(Refused, how)
		return
	}
	before := r.How
	r.Become(Refused, string(f)+": "+how)
	if before != "" && before != r.How && !strings.HasPrefix(r.How, before) {
		r.How = before + "; " + r.How
	}
}

// Void refuses the full row, which then fills in no fields.
func (r *Row) Void(how string) {
	r.voided, r.fields, r.Fate, r.How = r.fields, nil, "", ""
	r.Become(Refused, how)
}

// Supersede records that an option of the submit command overrides the row.
func (r *Row) Supersede(how string) {
	r.Become(Changed, how)
	r.fields = nil
}

// Overrule records that a flag of hpcc sets the field, even if the row was refused.
func (r *Row) Overrule(f Field, how string) {
	switch {
	case slices.Contains(r.fields, f):
		r.Become(Changed, how)
	case slices.Contains(r.voided, f):
		r.Fate, r.How, r.voided = Changed, how, nil
	}
}

// Rows are the report of a translation, in the order of the script.
type Rows []*Row

// SetFate gives a fate to the rows that fill in any of the fields and are not refused.
func (rows Rows) SetFate(f Fate, how string, fields ...Field) {
	for _, r := range rows {
		if r.Fate != Refused && r.Has(fields...) {
			r.Become(f, how)
		}
	}
}

// Refuse refuses a field in all rows that fill it in.
func (rows Rows) Refuse(how string, f Field) {
	for _, r := range rows {
		if r.Has(f) {
			r.Refuse(f, how)
		}
	}
}
