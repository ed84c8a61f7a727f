package report

import "html/template"

// A Chart is a picture for the page: the inside of an SVG of a width and height,
// in its own units, with a table that says the same.
type Chart struct {
	Title  string
	About  string // what is to be seen, for those who do not see it
	Width  int
	Height int
	Body   template.HTML // its text escaped, its colours by the classes of the page
	Table  *Table        // nil: the picture's own table stands elsewhere on the page
}
