echo main "$@"
