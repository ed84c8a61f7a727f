package field

import (
	"slices"
	"strings"

	"hpcc/job"
)

// A Fate is what becomes of a directive in a translation.
type Fate string

// The fates. Kept: the target has the same. Emulated: hpcc does it for the target.
// Changed: the target has something similar, and How says what differs. Refused: the
// translation goes without it, and How says why.
const (
	Kept     Fate = "kept"
	Changed  Fate = "changed"
	Emulated Fate = "emulated"
	Refused  Fate = "refused"
)

var severity = map[Fate]int{Kept: 0, Emulated: 1, Changed: 2, Refused: 3}

// A Verdict is what a target makes of a field that it does not have as the source has
// it. Fields without a verdict are kept.
type Verdict struct {
	Fate Fate
	How  string
	When func(j *job.Job) bool // nil: always
	Drop bool                  // the job goes without the field, as if it were refused
}

// A Row reports what became of one option or line.
type Row struct {
	Line int    `json:"line,omitempty"` // of the script; 0 for the submit command and for defaults
	Text string `json:"text"`
	Fate Fate   `json:"fate"`
	How  string `json:"how,omitempty"`

	fields []Field // of the job that the row filled in
	meant  []Field // that it would have filled in if it were not refused
}

// Fills notes that the row fills in fields of the job.
func (r *Row) Fills(f ...Field) { r.fields = append(r.fields, f...) }

// Has reports whether the row filled in one of the fields.
func (r *Row) Has(f ...Field) bool {
	return slices.ContainsFunc(f, func(f Field) bool { return slices.Contains(r.fields, f) })
}

// Filled reports whether the row filled in any field.
func (r *Row) Filled() bool { return len(r.fields) > 0 }

// Become gives the row a fate, unless it has a worse one. The explanations add up; those
// of a refused row are only those of its refusal.
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

// Refuse refuses one field of the row; its other fields stay.
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

// Void refuses the whole row: it fills in nothing.
func (r *Row) Void(how string) {
	r.meant, r.fields, r.Fate, r.How = r.fields, nil, "", ""
	r.Become(Refused, how)
}

// Supersede notes that an option of the submit command sets the row's field.
func (r *Row) Supersede(how string) {
	r.Become(Changed, how)
	r.fields = nil
}

// Overrule notes that a flag of hpcc sets the field, also if the row was refused.
func (r *Row) Overrule(f Field, how string) {
	switch {
	case slices.Contains(r.fields, f):
		r.Become(Changed, how)
	case slices.Contains(r.meant, f):
		r.Fate, r.How, r.meant = Changed, how, nil
	}
}

// Rows are the report of a translation, in the order of the script.
type Rows []*Row

// SetFate sets the fate of the rows of some fields that are not refused.
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
