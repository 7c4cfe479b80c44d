def page(result):
    return ""
