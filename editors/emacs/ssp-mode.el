;;; ssp-mode.el --- Plans of ssdsl: (load "ssp-mode") in your init file; needs eglot, and pip install 'ssdsl[lsp]'  -*- lexical-binding: t -*-
(defconst ssp-words
  (regexp-opt '("param" "mesh" "let" "use" "dim" "split" "assign" "order" "recompute" "prefetch" "bucket" "keep" "precision"
                "compress" "require" "def" "return" "for" "if" "elif" "else" "either" "or" "and" "not" "in" "by" "into" "to" "at" "on") 'symbols))
(define-derived-mode ssp-mode prog-mode "ssp"
  (setq-local comment-start "# " indent-tabs-mode nil tab-width 4 font-lock-defaults `(((,ssp-words . font-lock-keyword-face)))))
(modify-syntax-entry ?# "<" ssp-mode-syntax-table)
(modify-syntax-entry ?\n ">" ssp-mode-syntax-table)
(add-to-list 'auto-mode-alist '("\\.ssp\\'" . ssp-mode))
(with-eval-after-load 'eglot (add-to-list 'eglot-server-programs '(ssp-mode . ("ssdsl" "lsp"))))
(add-hook 'ssp-mode-hook 'eglot-ensure)
(provide 'ssp-mode)
