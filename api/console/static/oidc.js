// Keeps the ID token that the page of a login has in this tab, and opens the console.
sessionStorage.setItem('anneal.key', document.querySelector('meta').content)
location.replace('/')
