package report

import (
	"math"
	"slices"
)

// A spread is how a figure lies over repeated runs: a median and quartiles
// between the least and the most.
type spread struct {
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Q1     float64 `json:"q1"`
	Median float64 `json:"median"`
	Q3     float64 `json:"q3"`
	Max    float64 `json:"max"`
	Sum    float64 `json:"sum"`
}

// How many runs it takes until quartiles say something, and until a difference can be
// told from chance.
const (
	enoughForQuartiles = 4
	enoughToTell       = 6
)

// spreadOf sorts its values.
func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	slices.Sort(values)
	s := spread{N: len(values), Min: values[0], Max: values[len(values)-1],
		Q1: quantile(values, 0.25), Median: quantile(values, 0.5), Q3: quantile(values, 0.75)}
	for _, v := range values {
		s.Sum += v
	}
	return s
}

// quantile lies between two of the sorted values, in proportion: type 7 of
// Hyndman and Fan, as R, NumPy and spreadsheets have it.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// middle is the range that a text names: the quartiles, or of few runs all.
func (s spread) middle() (low, high float64) {
	if s.N < enoughForQuartiles {
		return s.Min, s.Max
	}
	return s.Q1, s.Q3
}

// manyValues is from how many on a binomial distribution is as good as a normal one.
const manyValues = 200

// sure is where the median that the sorted values are drawn from lies, with a confidence of
// at least 95 %: between two of them, by the sign test, whatever they are distributed like. Of
// fewer than six values none are so far apart.
func sure(sorted []float64) (low, high float64, ok bool) {
	n := len(sorted)
	if n < enoughToTell {
		return 0, 0, false
	}
	// The k-th from either end, the farthest in for which P(X < k) is 2.5 % at most: X ~ Binomial(n, 1/2).
	k := int((float64(n) - 1.96*math.Sqrt(float64(n))) / 2)
	if n < manyValues {
		k = 0
		for p, sum := math.Exp2(-float64(n)), 0.0; sum+p <= 0.025; k++ {
			sum += p
			p *= float64(n-k) / float64(k+1)
		}
	}
	return sorted[k-1], sorted[n-k], true
}

// apart says whether two medians differ with a confidence of about 95 %: notches of box
// plots do not touch (McGill, Tukey and Larsen), of logarithms, for times are skewed.
func (s spread) apart(o spread) bool {
	low, high := s.notch()
	olow, ohigh := o.notch()
	return high < olow || ohigh < low
}

func (s spread) notch() (low, high float64) {
	middle := math.Log(s.Median)
	wide := 1.57 * (math.Log(s.Q3) - math.Log(s.Q1)) / math.Sqrt(float64(s.N))
	return middle - wide, middle + wide
}
