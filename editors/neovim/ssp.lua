-- Plans in Neovim (0.7 and newer): put this file into ~/.config/nvim/plugin/. It needs `pip install 'ssdsl[lsp]'`.
vim.api.nvim_create_autocmd({ "BufRead", "BufNewFile" }, { pattern = "*.ssp", callback = function() vim.bo.filetype = "ssp" end })
vim.api.nvim_create_autocmd("FileType", { pattern = "ssp", callback = function()
  vim.bo.commentstring = "# %s"
  local config = { name = "ssdsl", cmd = { "ssdsl", "lsp" }, root_dir = vim.fn.expand("%:p:h") }
  if vim.lsp.start then vim.lsp.start(config) else vim.lsp.buf_attach_client(0, vim.lsp.start_client(config)) end
  vim.keymap.set("n", "K", vim.lsp.buf.hover, { buffer = true })
  vim.bo.omnifunc = "v:lua.vim.lsp.omnifunc"
end })
