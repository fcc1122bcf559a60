"""The viewer in the page: NiiVue, our scripts around it, and volumes in the form they read."""
